"""Kernel sets: the operations on state in the runtime's own operators, or in hybridge's."""
