"""Which lines and branches of the product the tests reach."""
