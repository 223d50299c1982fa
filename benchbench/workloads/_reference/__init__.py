"""The float64 reference of networks: operations in NumPy, differentiated by HIPS autograd.

Needs autograd, which only our own interpreter is promised to have: import it inside functions.
"""
