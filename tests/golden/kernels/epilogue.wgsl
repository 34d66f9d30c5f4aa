// Not printed: there is no template for `matmul`.
