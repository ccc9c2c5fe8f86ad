"""The portal: pages, API, sockets and the domain behind them."""
