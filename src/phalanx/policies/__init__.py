"""Pure rules that planning, virtual time and training share: figures go in, decisions come out."""
