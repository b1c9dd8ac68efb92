package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/softnic/softnic/link/capture"
	"github.com/softnic/softnic/link/impair"
)

// CaptureID is the header of the answer to GET /v1/capture that says how DELETE names it.
const CaptureID = "Softnic-Capture"

// lastWords is how long a client has to take the end of a capture.
const lastWords = 2 * time.Second

// maxCaptures bounds how many run at a time, and captureLimit what of each may wait to be taken: whoever captures costs the NIC
// a copy of each packet.
const (
	maxCaptures  = 8
	captureLimit = 16 << 20
)

// captures are those that run.
type captures struct {
	mu     sync.Mutex
	last   int
	end    map[int]context.CancelFunc
	closed bool
}

func (c *captures) add(end context.CancelFunc) (id int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, errors.New("the NIC is about to end")
	}
	if len(c.end) >= maxCaptures {
		return 0, fmt.Errorf("%d captures run already, as many as there can be: end one", maxCaptures)
	}
	if c.end == nil {
		c.end = map[int]context.CancelFunc{}
	}
	c.last++
	c.end[c.last] = end
	return c.last, nil
}

func (c *captures) remove(id int) (was bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	end, was := c.end[id]
	if was {
		end()
		delete(c.end, id)
	}
	return was
}

func (c *captures) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, end := range c.end {
		end()
	}
}

// FilterQuery is the query of GET /v1/capture that means the filter as given in text: number of a queue pair, address or network
// of the peer, opcodes as impairment rules name them. What is "" is not asked for.
func FilterQuery(qp, peer, opcode string) url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"qp": qp, "peer": peer, "opcode": opcode} {
		if v != "" {
			q.Set(name, v)
		}
	}
	return q
}

// ParseFilter reads the query of GET /v1/capture. The error says what is allowed.
func ParseFilter(q url.Values) (f capture.Filter, err error) {
	for name := range q {
		if name != "qp" && name != "peer" && name != "opcode" {
			return f, fmt.Errorf("a capture is not chosen by %q: have qp, peer, opcode", name)
		}
	}
	if v := q.Get("qp"); v != "" {
		n, err := strconv.ParseUint(v, 0, 24)
		if err != nil || n == 0 {
			return f, fmt.Errorf("qp %s: want the number of a queue pair of this NIC, as 17 or 0x11: `softnic resource show qp` lists them", v)
		}
		f.QP = uint32(n)
	}
	if v := q.Get("peer"); v != "" {
		if f.Peer, err = netip.ParsePrefix(v); err != nil {
			a, err := netip.ParseAddr(v)
			if err != nil || a.Zone() != "" {
				return f, fmt.Errorf("peer %s: want an address, as 10.0.0.2, or a network, as 10.0.0.0/24", v)
			}
			f.Peer = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())
		}
	}
	if v := q.Get("opcode"); v != "" {
		if f.Ops, err = impair.Opcodes(v); err != nil {
			return f, fmt.Errorf("opcode %s: %w", v, err)
		}
	}
	return f, nil
}

// capture answers with a pcapng file that goes on until the client leaves, or somebody ends it.
func (s *Server) capture(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 { // of a client that sends one, net/http does not see the end
		w.Header().Set("Connection", "close")
		fail(w, http.StatusBadRequest, "a capture is asked for without a body")
		return
	}
	f, err := ParseFilter(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	if s.opts.Taps == nil {
		fail(w, http.StatusNotImplemented, "this NIC cannot be captured while it runs")
		return
	}
	ctx, end := context.WithCancel(r.Context())
	defer end()
	id, err := s.captures.add(end)
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer s.captures.remove(id)
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{}) // it may be days
	_ = rc.SetWriteDeadline(time.Time{})
	w.Header().Set("Content-Type", "application/x-pcapng")
	w.Header().Set(CaptureID, strconv.Itoa(id))
	w.WriteHeader(http.StatusOK)
	out := &flusher{ResponseWriter: w, rc: rc}
	c, err := capture.NewWriter(out, s.dev.Port().Info(), capture.Options{Logger: s.opts.Logger, Limit: captureLimit})
	if err != nil {
		return // the client is gone
	}
	detach := s.opts.Taps.Attach(f.Sink(c))
	out.begin() // what passes once the client has seen the beginning is in the capture
	<-ctx.Done()
	detach()
	_ = rc.SetWriteDeadline(time.Now().Add(lastWords))
	_ = c.Close()
}

// flusher sends on what is written, from begin on: the client follows.
type flusher struct {
	http.ResponseWriter
	rc *http.ResponseController

	mu    sync.Mutex
	begun bool
}

// Write implements io.Writer.
func (f *flusher) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.ResponseWriter.Write(b)
	if err == nil && f.begun {
		err = f.rc.Flush()
	}
	return n, err
}

// begin sends what was written until now. A client that is gone shows at the next Write.
func (f *flusher) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun = true
	_ = f.rc.Flush()
}

func (s *Server) endCapture(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.Atoi(r.PathValue("id"))
	if err != nil || !s.captures.remove(id) {
		fail(w, http.StatusNotFound, fmt.Sprintf("no capture has the number %s", r.PathValue("id")))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
