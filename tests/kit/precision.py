"""Which parameters stay fp32 under Float16Module."""

FP32 = {
    "mamba3": {f"mixer.mamba.{name}" for name in ("dt_bias", "D", "B_bias", "C_bias", "mimo_x", "mimo_z", "mimo_o")},
    "m2rnn": {f"mixer.{name}" for name in ("A_log", "dt_bias", "D")},
}
