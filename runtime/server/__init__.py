"""A server with OpenAI's API: requests in, generations over one artifact's sessions, responses out.

Only ``hybridge serve`` imports this room; it imports runtime/text and runtime/binding, and knows nothing of the command line
or of PyTorch. A request goes through ``app.py``, ``requests.py``, ``prompts.py`` and ``structure.py`` to the thread in
``worker.py``, and comes back by ``responses.py``.
"""
