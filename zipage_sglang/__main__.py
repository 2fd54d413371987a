"""`python -m zipage_sglang doctor`: is this installation able to serve with --enable-zipage, and if not, why.
`python -m zipage_sglang plan`: what fits and how fast, before a server is started.
`python -m zipage_sglang show TRACE`: a trace of a server with --zipage-trace, as a page for the browser or a picture."""

import sys

from zipage_sglang.cli import main

if __name__ == "__main__":
    sys.exit(main())
