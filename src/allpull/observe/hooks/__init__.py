"""What is put into a program that nobody edited: its entry points into torch, wrapped, and who listens there.

``start`` is called by the start-up hook, ``imports`` waits for torch, one file for each kind of entry point wraps it,
``inference`` makes phases and steps of what they tell, and ``session`` decides whether this process is a rank at all.
No global module hook is used: on a network of 159 modules they cost half a millisecond a step.
"""
