// Not printed: no shader has `matmul` and what follows it.
