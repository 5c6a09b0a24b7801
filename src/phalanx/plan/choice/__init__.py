"""Which machines and which strategy: the search, the rules that decide, and their reasons."""
