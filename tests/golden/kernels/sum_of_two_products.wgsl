// Not printed: there is no template for `matmul`.

// Not printed: there is no template for `matmul`.
