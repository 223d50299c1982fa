"""Wrong decode steps of language models, as functions that change a module."""

from collections.abc import Callable
from typing import Any


def _changed(module: Any, change: Callable[[str, Any], Any]) -> None:
    """Change the inputs of each call by name."""

    def change_inputs(_module: Any, args: Any, kwargs: Any) -> Any:
        return args, {name: change(name, tensor) for name, tensor in kwargs.items()}

    module.register_forward_pre_hook(change_inputs, with_kwargs=True)


def _is_cache(name: str) -> bool:
    return name.startswith(("key_", "value_"))


def the_cache_forgotten(module: Any) -> None:
    def change(name: str, tensor: Any) -> Any:
        if not _is_cache(name):
            return tensor
        return tensor[:, :, tensor.shape[2] - module.preallocated :]

    _changed(module, change)


def one_token_too_few(module: Any) -> None:
    _changed(module, lambda name, tensor: tensor[:, :, 1:] if _is_cache(name) else tensor)


def the_wrong_position(module: Any) -> None:
    _changed(module, lambda name, tensor: tensor - 1 if name == "position_ids" else tensor)


DECODE_MUTANTS = (the_cache_forgotten, one_token_too_few, the_wrong_position)
