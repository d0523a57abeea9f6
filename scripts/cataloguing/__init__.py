"""The catalogue of programs for published shapes: ``scripts/catalogue`` makes it for a release.

``shapes.py`` is the table of published models, ``mixes.py`` has the types that llama.cpp gives to their tensors, ``files.py``
writes a GGUF file of a shape with random weights, ``__main__.py`` exports each and makes the wheel.
"""
