// Logs in and does one thing for each line of its standard input, by franz-go.
//
// The fields of a line are separated by tabs: see testbench/logins/cases.py. Says "ok", or Kafka's name of the error;
// for an alert of the broker's TLS "tls alert".
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const wait = 15 * time.Second

func mechanism(name, user, secret string) sasl.Mechanism {
	switch name {
	case "PLAIN":
		return plain.Auth{User: user, Pass: secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: secret}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: secret}.AsSha512Mechanism()
	default:
		return oauth.Auth{Token: secret}.AsMechanism()
	}
}

func transport(authority, own string) (*tls.Config, error) {
	pem, err := os.ReadFile(authority)
	if err != nil {
		return nil, err
	}
	made := &tls.Config{RootCAs: x509.NewCertPool()}
	made.RootCAs.AppendCertsFromPEM(pem)
	if own != "" {
		pair, err := tls.LoadX509KeyPair(own, own)
		if err != nil {
			return nil, err
		}
		made.Certificates = []tls.Certificate{pair}
	}
	return made, nil
}

func options(fields []string) ([]kgo.Opt, error) {
	made := []kgo.Opt{
		kgo.SeedBrokers(fields[0]), kgo.RequestRetries(2), kgo.RecordDeliveryTimeout(wait), kgo.RecordRetries(2),
	}
	if fields[2] != "" {
		made = append(made, kgo.SASL(mechanism(fields[2], fields[3], fields[4])))
	}
	if strings.HasSuffix(fields[1], "SSL") {
		config, err := transport(fields[5], fields[6])
		if err != nil {
			return nil, err
		}
		made = append(made, kgo.DialTLSConfig(config))
	}
	switch fields[7] {
	case "read":
		start := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
		made = append(made, kgo.ConsumerGroup(fields[8]), kgo.ConsumeTopics("open"), start)
	case "transaction":
		made = append(made, kgo.TransactionalID(fields[8]))
	}
	return made, nil
}

func act(client *kgo.Client, action, resource string) error {
	limit, done := context.WithTimeout(context.Background(), wait)
	defer done()
	if err := client.Ping(limit); err != nil {
		return err
	}
	switch action {
	case "write":
		record := &kgo.Record{Topic: resource, Value: []byte("x")}
		return client.ProduceSync(limit, record).FirstErr()
	case "read":
		return client.PollRecords(limit, 1).Err()
	case "transaction":
		_, _, err := client.ProducerID(limit)
		return err
	default:
		return describeAcls(limit, client)
	}
}

func describeAcls(limit context.Context, client *kgo.Client) error {
	request := kmsg.NewPtrDescribeACLsRequest()
	request.ResourceType = kmsg.ACLResourceTypeAny
	request.ResourcePatternType = kmsg.ACLResourcePatternTypeAny
	request.Operation = kmsg.ACLOperationAny
	request.PermissionType = kmsg.ACLPermissionTypeAny
	response, err := request.RequestWith(limit, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(response.ErrorCode)
}

func outcome(fields []string) error {
	chosen, err := options(fields)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(chosen...)
	if err != nil {
		return err
	}
	defer client.Close()
	return act(client, fields[7], fields[8])
}

func name(err error) string {
	var kafka *kerr.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &kafka):
		return kafka.Message
	case strings.Contains(err.Error(), "remote error: tls:"):
		return "tls alert"
	default:
		return err.Error()
	}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(name(outcome(strings.Split(lines.Text(), "\t"))))
	}
}
