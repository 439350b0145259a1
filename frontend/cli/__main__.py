"""`python -m attn_mlir.cli`."""

import sys

from attn_mlir.cli.main import main

sys.exit(main())
