"""Several processes that train one model together: who they are, how they exchange values, and how weights are sharded."""
