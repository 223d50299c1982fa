"""The convolutional network of Keras's first example, for digits of 28 × 28."""

import keras
from keras import layers


def model(width: int = 8) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(width, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(2 * width, 3),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
