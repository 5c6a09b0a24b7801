"""The files that an unchanged script writes: whose they are, and where they are kept."""
