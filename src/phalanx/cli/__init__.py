"""The command line, with one small file for each verb."""
