"""The files that an adopted script writes: whose they are, and where they are kept."""
