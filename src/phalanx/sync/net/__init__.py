"""What crosses hosts: authenticated connections and what is built on them."""
