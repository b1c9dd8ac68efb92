package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// maxAnswer bounds what a client reads of an answer.
const maxAnswer = 64 << 20

// Client asks a running daemon.
type Client struct {
	path string // of the control socket
	http http.Client
}

// NewClient returns a client for the daemon whose socket is path (without
// ".ctl"). It connects when it is used.
func NewClient(path string) *Client {
	c := &Client{path: path + Suffix}
	c.http.Timeout = 10 * time.Second
	c.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", c.path)
		},
	}
	return c
}

// Daemon says who serves.
func (c *Client) Daemon(ctx context.Context) (d Daemon, err error) {
	return d, c.get(ctx, "daemon", &d)
}

// Devs describes the device.
func (c *Client) Devs(ctx context.Context) (l []Dev, err error) { return l, c.get(ctx, "dev", &l) }

// Links describes the ports.
func (c *Client) Links(ctx context.Context) (l []Link, err error) { return l, c.get(ctx, "link", &l) }

// Statistics returns the counters of the ports.
func (c *Client) Statistics(ctx context.Context) (l []Statistic, err error) {
	return l, c.get(ctx, "statistic", &l)
}

// QPStatistics returns the counters of the queue pairs.
func (c *Client) QPStatistics(ctx context.Context) (l []Statistic, err error) {
	return l, c.get(ctx, "statistic/qp", &l)
}

// QPs lists the queue pairs.
func (c *Client) QPs(ctx context.Context) (l []QP, err error) { return l, c.get(ctx, "qp", &l) }

func (c *Client) get(ctx context.Context, what string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://softnic/v1/"+what, nil)
	if err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return c.explain(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s: answer cut off: %w", c.path, err)
	}
	if res.StatusCode != http.StatusOK {
		var e Error
		if json.Unmarshal(body, &e) != nil || e.Message == "" {
			e.Message = strings.TrimSpace(res.Status)
		}
		return fmt.Errorf("%s: %s", c.path, e.Message)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s: the answer is not what softnic sends: %w", c.path, err)
	}
	return nil
}

// explain makes a line of an error that says what to do.
func (c *Client) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no softnic runs on %s: start one with `softnic run`, or name its socket with --socket PATH; one that root started is asked as root", c.path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s belongs to another user: ask as that user or as root", c.path)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op
	}
	return fmt.Errorf("%s: %w", c.path, err)
}
