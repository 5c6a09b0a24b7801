"""Options of verbs, and the requests, jobs and studies that are made from them."""
