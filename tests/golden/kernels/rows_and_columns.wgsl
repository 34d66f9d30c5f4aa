// Not printed: `softmax` has no recorded form for f32.
