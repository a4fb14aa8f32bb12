// A browser starts no Worker in a page that was opened as a file. This one runs its script in a hidden frame, so that
// the search works there too.
if (location.protocol === "file:")
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const scope = this.frame.contentWindow;
      // a Worker's messages are copies, and come when the code that sent them has ended
      scope.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      const script = scope.document.createElement("script");
      this.loaded = new Promise((resolve) => (script.onload = resolve));
      script.onerror = (event) => this.onerror?.(event);
      script.src = url;
      scope.document.head.append(script);
    }
    async postMessage(data) {
      await this.loaded;
      const scope = this.frame.contentWindow;
      setTimeout(() => scope?.onmessage({ data: scope.structuredClone(data) }));
    }
    terminate() {
      this.frame.remove();
    }
  };
