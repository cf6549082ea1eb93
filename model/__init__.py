"""NAM56R trained on Megatron-Core through the packs' patches."""

import reproducers as reproducers  # whose first lines end a verb that cannot start here
