"""Small changes of the product, each of which a test should notice."""
