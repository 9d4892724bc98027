// A broker in one process that keeps everything in memory, by franz-go's kfake: kfake PORT DIRECTORY
//
// It writes what it is given to files in the directory, too, as it does with kfake's own option. The benches measure it
// beside Ottla. It ends with SIGTERM.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err == nil {
		err = run(port, os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kfake:", err)
		os.Exit(1)
	}
}

func run(port int, directory string) error {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kfake.DataDir(directory))
	if err != nil {
		return err
	}
	defer cluster.Close()
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
	return nil
}
