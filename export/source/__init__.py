"""Read checkpoints: from the name that a user gives to a ``CheckpointSource``, and from that to a ``LoadedModel``.

``checkpoint.py`` has both and is the room's entrance. ``locate.py`` and ``files.py`` find the folder and refuse others,
``config.py`` reads config.json, ``weight_files.py``, ``quantization*.py`` and ``gguf/`` read weights, ``text_model.py``
takes the text model out and merges adapters, ``tokenizer.py`` reads the tokenizer. May import layers, operators, pinned
modules and the cache; knows nothing of options, artifacts' layouts and writers.
"""
