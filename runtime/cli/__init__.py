"""The commands that need an artifact and no PyTorch (run, chat, serve, inspect, doctor, native, kernels), and shared options.

``hybridge.__main__`` and export/cli import this room, which may import everything in runtime/. A command imports what it runs
inside its function: at the top there is nothing that takes long to start, so that help and wrong usage are answered at once.
"""
