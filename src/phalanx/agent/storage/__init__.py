"""What is kept on the machine: blobs, folders, environments, results."""
