"""Feature maps that leave the device until backpropagation needs them."""
