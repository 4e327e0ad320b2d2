// The official Go SDK, as a client and as a server for the tests.
//
//	official client   reads commands from standard input, as the clients in Python and JavaScript do
//	official server   serves an agent, prints its address, and ends when standard input closes
package main

import (
	"fmt"
	"log/slog"
	"os"
)

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the agent fails when it is asked to
	run := map[string]func() error{"client": drive, "server": serve}
	if len(os.Args) != 2 || run[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: official client|server")
		os.Exit(2)
	}
	if err := run[os.Args[1]](); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
