"""What the engine decides, without a tensor, a socket, a clock or a random number.

Everything here is pure Python. The time and the seeds come in as arguments.
"""
