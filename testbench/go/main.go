// One member of a consumer group, by franz-go: member BOOTSTRAP GROUP TOPIC [INSTANCE]
//
// Says and does what testbench/member.py says and does. It leaves the group when its standard input ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var output sync.Mutex

func tell(event ...any) {
	line, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func options(bootstrap, group, topic string) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(time.Second),
		kgo.FetchMaxWait(200 * time.Millisecond),
		kgo.DisableAutoCommit(),
		// Nothing is taken away while records of a poll are being worked on.
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, client *kgo.Client, assigned map[string][]int32) {
			owned := append([]int32{}, assigned[topic]...)
			slices.Sort(owned)
			_, generation := client.GroupMetadata()
			tell("owns", owned, generation)
		}),
		kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) { tell("owns", []int32{}, -1) }),
		kgo.OnPartitionsLost(func(context.Context, *kgo.Client, map[string][]int32) { tell("owns", []int32{}, -1) }),
	}
}

func work(client *kgo.Client, over context.Context) {
	for over.Err() == nil {
		wait, done := context.WithTimeout(over, 200*time.Millisecond)
		fetched := client.PollRecords(wait, 50)
		done()
		fetched.EachRecord(func(each *kgo.Record) { tell("read", each.Partition, each.Offset, string(each.Value)) })
		if fetched.NumRecords() > 0 {
			limit, done := context.WithTimeout(context.Background(), 5*time.Second)
			if err := client.CommitUncommittedOffsets(limit); err != nil {
				tell("commit failed", err.Error())
			}
			done()
		}
		client.AllowRebalance()
	}
}

func main() {
	chosen := options(os.Args[1], os.Args[2], os.Args[3])
	if len(os.Args) > 4 {
		chosen = append(chosen, kgo.InstanceID(os.Args[4]), kgo.SessionTimeout(20*time.Second))
	} else {
		chosen = append(chosen, kgo.SessionTimeout(6*time.Second))
	}
	client, err := kgo.NewClient(chosen...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	over, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	work(client, over)
	client.CloseAllowingRebalance()
	tell("left")
}
