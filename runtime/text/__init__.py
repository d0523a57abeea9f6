"""Text over an artifact: generation, chat templates, formats of answers, grammars, conversations.

Commands, the server and the integrations import this room; it imports runtime/binding and runtime/artifact, and knows nothing
of terminals, HTTP, PyTorch or transformers. ``generate.py`` is where tokens become text, ``conversation.py`` keeps turns.
"""
