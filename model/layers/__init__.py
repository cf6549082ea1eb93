"""The layers that Megatron-Core does not have, each beside a plain-torch reference."""
