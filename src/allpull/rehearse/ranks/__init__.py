"""Train on a virtual cluster: real DDP, gradients and collectives around a computation that only takes time.

``faults`` defines the planted faults, ``schedule`` how long each part takes, ``accelerator`` builds a network from it,
and ``loop`` trains that network. Each rank runs the package as a module with a job file. Standard library and torch
only, no pydantic.
"""
