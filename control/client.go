package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/softnic/softnic/link/impair"
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

// Rules lists the impairment rules.
func (c *Client) Rules(ctx context.Context) (l []impair.Status, err error) {
	return l, c.get(ctx, "impair", &l)
}

// AddRule adds an impairment rule.
func (c *Client) AddRule(ctx context.Context, rule string) (s impair.Status, err error) {
	body, err := json.Marshal(Rule{rule})
	if err != nil {
		return s, err
	}
	return s, c.do(ctx, http.MethodPost, "impair", bytes.NewReader(body), &s)
}

// RemoveRule removes an impairment rule, by its ID.
func (c *Client) RemoveRule(ctx context.Context, id string) error {
	if id == "" {
		return errors.New("no rule has the ID \"\"")
	}
	return c.do(ctx, http.MethodDelete, "impair/"+url.PathEscape(id), nil, nil)
}

// ClearRules removes all impairment rules.
func (c *Client) ClearRules(ctx context.Context) error {
	return c.do(ctx, http.MethodDelete, "impair", nil, nil)
}

// Capture writes to w, as a pcapng file, what passes the NIC from now on, of that what the filter lets pass (FilterQuery). It returns when ctx
// is done, when w fails, or when the daemon ends. started, which may be nil, is called when packets are taken.
func (c *Client) Capture(ctx context.Context, filter url.Values, w io.Writer, started func()) error {
	// The request is not that of ctx: its end is to be waited for.
	own, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, err := http.NewRequestWithContext(own, http.MethodGet, "http://softnic/v1/capture?"+filter.Encode(), nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: c.http.Transport}).Do(req)
	if err != nil {
		return c.explain(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return c.failure(res)
	}
	stop := context.AfterFunc(ctx, func() {
		end, cancelEnd := context.WithTimeout(own, lastWords)
		defer cancelEnd()
		if c.do(end, http.MethodDelete, "capture/"+url.PathEscape(res.Header.Get(CaptureID)), nil, nil) != nil {
			cancel()
			return
		}
		select {
		case <-own.Done():
		case <-time.After(2 * lastWords):
			cancel()
		}
	})
	defer stop()
	if started != nil {
		started()
	}
	mine := &remember{w: w}
	_, err = io.Copy(mine, res.Body)
	switch {
	case mine.err != nil:
		return mine.err
	case ctx.Err() != nil, err == nil:
		return nil
	}
	return fmt.Errorf("%s: the NIC has gone in the middle of the capture, and the end of it is missing: %w", c.path, err)
}

func (c *Client) get(ctx context.Context, what string, v any) error {
	return c.do(ctx, http.MethodGet, what, nil, v)
}

// do asks for what and reads the answer into v, unless v is nil.
func (c *Client) do(ctx context.Context, method, what string, body io.Reader, v any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://softnic/v1/"+what, body)
	if err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return c.explain(err)
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return c.failure(res)
	}
	if v == nil {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s: answer cut off: %w", c.path, err)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: the answer is not what softnic sends: %w", c.path, err)
	}
	return nil
}

// remember knows what went wrong with a writer, apart from what went wrong with who fills it.
type remember struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (r *remember) Write(b []byte) (n int, err error) {
	n, r.err = r.w.Write(b)
	return n, r.err
}

// failure is the error that an answer tells of.
func (c *Client) failure(res *http.Response) error {
	var e Error
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if json.Unmarshal(text, &e) != nil || e.Message == "" {
		e.Message = strings.TrimSpace(res.Status)
	}
	return fmt.Errorf("%s: %s", c.path, e.Message)
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
