"""The commands that make and check artifacts: export, validate, evaluate, demo and bench.

``hybridge.__main__`` imports this room, which may import everything. It alone in export/ knows a console. A command imports
PyTorch, and what else takes long to start, inside its function: the command line is built from the top of these files.
"""
