"""Files on the machine: those sent to it (blobs, folders, environments), and results sent back."""
