"""The drain: claim, work on a cluster, keep the lease, commit every decision at once."""
