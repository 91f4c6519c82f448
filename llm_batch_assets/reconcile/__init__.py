"""Result files in, provably right sets out, with evidence that a stranger can check."""
