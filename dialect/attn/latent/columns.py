"""Contents of the rows of a latent cache: one for each token, of one head, which all query heads
read.

```text
columns  0 .............................. 511 | 512 ..... 575
         latent: keys, and all of the values | rope: of keys
```
"""

LATENT_COLUMNS = 512
ROPE_COLUMNS = 64
ROW_COLUMNS = LATENT_COLUMNS + ROPE_COLUMNS
