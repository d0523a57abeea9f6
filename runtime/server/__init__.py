"""A server with OpenAI's interface: requests in, conversations over one artifact, text out."""
