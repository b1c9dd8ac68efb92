package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// patience is how long a test may go on without a completion.
const patience = 30 * time.Second

// watchdog ends what waits when nothing has happened for a while.
type watchdog struct{ beats atomic.Uint64 }

// watch returns a context that ends with an error when there was no beat for patience.
func (w *watchdog) watch(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	tick := time.NewTicker(patience)
	go func() {
		defer tick.Stop()
		for last := w.beats.Load(); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now := w.beats.Load()
			if now == last {
				cancel(fmt.Errorf("no completion for %v: is the other side still there?", patience))
				return
			}
			last = now
		}
	}()
	return ctx, func() { cancel(nil) }
}
