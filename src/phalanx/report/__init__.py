"""Reports of runs: tables, figures, the verdict, and the bundle that lets others repeat a run."""
