// kube-tool is the only program in the image of the test cluster: the pause program of each pod's sandbox, and what
// pods of tests run where no user space is mounted.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const usage = `usage: kube-tool pause                 wait for SIGTERM, and reap what is left to process 1
       kube-tool serve ADDRESS TEXT    answer each HTTP request with TEXT and the client's address
       kube-tool fetch URL SECONDS     print the answer; asks again until SECONDS are over
       kube-tool print TEXT...         print each text on a line of its own
       kube-tool exit CODE             end with this exit code
       kube-tool box DIRECTORY         copy the box of the image, /box.pyz, into the directory
`

func main() {
	if len(os.Args) < 2 {
		fail(2, usage)
	}
	words := os.Args[2:]
	switch command := os.Args[1]; {
	case command == "pause" && len(words) == 0:
		pause()
	case command == "serve" && len(words) == 2:
		serve(words[0], words[1])
	case command == "fetch" && len(words) == 2:
		fetch(words[0], number(words[1]))
	case command == "print":
		for _, word := range words {
			fmt.Println(word)
		}
	case command == "exit" && len(words) == 1:
		os.Exit(number(words[0]))
	case command == "box" && len(words) == 1:
		if err := copyFile("/box.pyz", filepath.Join(words[0], "box.pyz")); err != nil {
			fail(1, "kube-tool: %v\n", err)
		}
	default:
		fail(2, usage)
	}
}

// pause ends with exit code 0 at SIGTERM or SIGINT.
func pause() {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGINT)
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	for {
		select {
		case <-ends:
			return
		case <-children:
			for {
				if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
					break
				}
			}
		}
	}
}

func serve(address, text string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fail(1, "kube-tool: %v\n", err)
	}
	fmt.Printf("listening on %s\n", listener.Addr())
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(to http.ResponseWriter, request *http.Request) {
			client, _, _ := net.SplitHostPort(request.RemoteAddr)
			fmt.Printf("request from %s\n", client)
			_, _ = fmt.Fprintf(to, "%s to %s\n", text, client)
		}),
	}
	go func() {
		pause()
		os.Exit(0)
	}()
	fail(1, "kube-tool: %v\n", server.Serve(listener))
}

func fetch(url string, seconds int) {
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	for {
		text, err := answer(url)
		if err == nil {
			fmt.Print(text)
			return
		}
		if time.Now().After(end) {
			fail(1, "kube-tool: %v\n", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func answer(url string) (string, error) {
	client := http.Client{Timeout: 2 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return string(text), err
}

// copyFile leaves the whole file or none under its name.
func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	draft := to + ".new"
	if err := os.WriteFile(draft, data, 0o644); err != nil {
		return err
	}
	return os.Rename(draft, to)
}

func number(word string) int {
	value, err := strconv.Atoi(word)
	if err != nil || value < 0 {
		fail(2, "kube-tool: %q is no number from 0 on\n%s", word, usage)
	}
	return value
}

func fail(code int, form string, values ...any) {
	fmt.Fprintf(os.Stderr, form, values...)
	os.Exit(code)
}
