"""The training of a virtual cluster: real DDP, gradients and collectives around a computation that only takes time.

``faults`` says what is planted, ``schedule`` how long everything takes, ``accelerator`` makes a network of it, and
``loop`` trains that. Run as a module with a job file, in each rank. Standard library and torch, no pydantic.
"""
